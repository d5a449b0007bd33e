"""FramePack image to video: description, checkpoint layout and networks."""
