"""Model files that other runtimes wrote, as named tensors: ONNX, ONNX Runtime, CTranslate2."""
