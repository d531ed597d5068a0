"""Names of the traced operations: what a `tag` of the program means."""

from enum import IntEnum

__all__ = ["OpTag"]


class OpTag(IntEnum):
    """Operation of a decode step; the number is the ``tag`` field of its instructions.

    The comment gives what the trace holds for one (position, layer, lane).  Head-wise operations append
    their heads in order.
    """

    NONE = 0
    EMBED = 1  # X after the embeddings, hidden x int32 (the pass that wrote X last)
    ATTN_NORM = 2  # Y, hidden x int32
    ATTN_ACT = 3  # int8, hidden
    QKV = 4  # Y: queries, keys, values after the projections
    QUERY_RAW = 5  # int8 raw queries (reference-code only)
    ROPE_Q = 6  # Y: rotated queries
    ROPE_K = 7  # Y: rotated keys
    QUERY = 8  # int8 rotated queries
    KEY = 9  # per kv head: exponent, then head_dim x int8
    VALUE = 10  # per kv head: exponent, then head_dim x int8
    TAS = 11  # per head: score of the aligned key (24 bits)
    SCORE = 12  # per head: T scores
    WEIGHT = 13  # per head: T softmax weights w
    PROB = 14  # per head: T x int8
    ATTN_OUT = 15  # Y: concatenated heads
    OUT_ACT = 16  # int8
    OUT = 17  # Y after the output projection
    ATTN_RES = 18  # X after the attention residual
    MLP_NORM = 19
    MLP_ACT = 20
    GATE = 21  # Y of the gate projection
    UP = 22
    SWIGLU = 23
    HIDDEN_ACT = 24  # int8, ffn
    DOWN = 25
    MLP_RES = 26  # X after the MLP residual (computed)
    REPLAY_RES = 27  # X after a replay
    FINAL_NORM = 28
    FINAL_ACT = 29
    LOGITS = 30
    SLOT = 31  # replay slot as stored: exponent, then hidden mantissas
