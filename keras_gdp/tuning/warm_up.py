"""A learning rate that rises to its value."""

import keras

__all__ = ["LinearWarmUp"]


@keras.saving.register_keras_serializable(package="keras_gdp")
class LinearWarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a constant (Goyal et al. 2017).

    Args:
        learning_rate: The value after the warm-up, > 0.
        warmup_steps: Number of steps until then, > 0. Step t < warmup_steps trains
            with `learning_rate * (t + 1) / warmup_steps`.
    """

    def __init__(self, learning_rate: float, warmup_steps: int):
        super().__init__()
        self.learning_rate = float(learning_rate)
        self.warmup_steps = int(warmup_steps)

    def __call__(self, step):
        share = (keras.ops.cast(step, "float32") + 1.0) / self.warmup_steps
        return self.learning_rate * keras.ops.minimum(share, 1.0)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
        }
