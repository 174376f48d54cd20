"""Exchange of models and data with other projects: the Hugging Face Hub, CPC_audio, ONNX, s3prl, WebDataset."""
