"""Numerical composition of privacy losses, one idea per file."""
