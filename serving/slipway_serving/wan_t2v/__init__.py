"""Text to video with Wan: the request, the prompt's tokenizer, the denoising loop."""
