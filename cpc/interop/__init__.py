"""Models and data from and for other projects: the Hugging Face Hub, CPC_audio, ONNX, s3prl, WebDataset's tars."""
