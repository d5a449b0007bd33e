"""FramePack image-to-video: a video begins with a picture and is generated section by section."""
