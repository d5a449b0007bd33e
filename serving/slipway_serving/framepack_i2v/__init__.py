"""FramePack: videos that begin with a picture and are made section by section."""
