"""Contributions to disjoint column blocks of one matrix."""

import tensorflow as tf

from keras_gdp.clipping.contributions.base import Contribution, rebuild_parts

__all__ = ["Columns"]


class Columns(Contribution):
    """Blocks side by side along the last axis of the variable.

    Args:
        blocks: Contributions whose shapes agree but for the last axis.
    """

    def __init__(self, blocks):
        width = sum(block.shape[-1] for block in blocks)
        super().__init__(
            [t for block in blocks for t in block.tensors],
            (*blocks[0].shape[:-1], width),
        )
        self.blocks = blocks

    def rebuild(self, tensors):
        return Columns(rebuild_parts(self.blocks, tensors))

    def per_example(self):
        return tf.concat([block.per_example() for block in self.blocks], axis=-1)

    def scale(self):
        return tf.add_n([block.scale() for block in self.blocks])

    def squared_norms(self):
        return tf.add_n([block.squared_norms() for block in self.blocks])

    def settled(self):
        return Columns([block.settled() for block in self.blocks])

    def weighted_sum(self, factors):
        return tf.concat([block.weighted_sum(factors) for block in self.blocks], -1)
