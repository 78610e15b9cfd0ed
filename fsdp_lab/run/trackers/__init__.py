"""Where the numbers of a run also go: TensorBoard, W&B, MLflow, trackio.

Read `protocol` first (what a tracker is), then `choice` (which ones a run has) and `guarded` (why none can harm it).
"""
