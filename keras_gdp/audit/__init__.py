"""Attacks on a trained model: what a guarantee is worth in practice.

A guarantee is an upper bound on what can be learned about an example; an attack that
succeeds is a lower bound. The two together say how much is known. The statistics import
without TensorFlow.
"""

from keras_gdp.audit.canaries import OneRunAudit, epsilon_lower_bound, one_run_audit
from keras_gdp.audit.membership import (
    MembershipInference,
    loss_threshold_attack,
    membership_inference,
)
from keras_gdp.audit.memorization import (
    LabelMemorization,
    MemorizationRun,
    label_memorization,
)

__all__ = [
    "LabelMemorization",
    "MembershipInference",
    "MemorizationRun",
    "OneRunAudit",
    "epsilon_lower_bound",
    "label_memorization",
    "loss_threshold_attack",
    "membership_inference",
    "one_run_audit",
]
