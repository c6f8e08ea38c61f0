"""HTTP: one file per endpoint. It knows requests and answers; what happens in between is the engine's business."""
