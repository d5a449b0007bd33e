"""LoRA files: their key layouts, and their merge into a checkpoint's weights while these are read."""
