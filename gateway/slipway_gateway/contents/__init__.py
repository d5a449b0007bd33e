"""Contents of jobs: where they are stored, the pictures made of a video, and the settings inside a file."""
