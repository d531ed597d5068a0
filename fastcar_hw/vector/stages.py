"""Stages of a pass, in enabled cycles after the issue of a word's read: the one place that adds latencies up."""

from .pipeline import VectorPipeline

__all__ = ["EXP", "FETCH", "MANTISSA", "OTHER_READ", "PARAM_READ", "RESIDUAL_READ", "SQUARE", "STAGES", "WRITE"]

#: The operand enters the pipeline: memory, operand register.
FETCH = 2
#: Parameters are read, a cycle before the pipeline wants them.
PARAM_READ = FETCH + VectorPipeline.PARAM_STAGE - 1
#: The second operand is read, and rests for a cycle; odd, so that it falls between the reads of two first ones.
OTHER_READ = FETCH + VectorPipeline.OTHER_STAGE - 2
assert OTHER_READ % 2 == 1
#: Softmax numerators, mantissas and squares leave the pipeline.
EXP = FETCH + VectorPipeline.EXP_STAGE
MANTISSA = FETCH + VectorPipeline.PARAM_STAGE
SQUARE = FETCH + VectorPipeline.SQUARE_STAGE
#: The residual is read, and rests for a cycle before the pipeline's result comes.
RESIDUAL_READ = FETCH + VectorPipeline.LATENCY - 2
#: The result, with the residual added, is written.
WRITE = FETCH + VectorPipeline.LATENCY + 1
STAGES = WRITE + 1
