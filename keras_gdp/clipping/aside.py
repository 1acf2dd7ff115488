"""Runs eager code while a function is being traced."""

import threading

__all__ = ["run_aside"]


def run_aside(function, *args):
    """Returns `function(*args)`, executed eagerly even inside a `tf.function`.

    `tf.init_scope` would lift the code out of the trace as well, but it also stops
    every gradient tape inside. A thread of its own has neither graph nor tapes.
    """
    result = []

    def run():
        try:
            result.extend((function(*args), None))
        except BaseException as error:
            result.extend((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = result
    if error is not None:
        raise error
    return value
