"""Files, folders, sockets and processes of the machine that servers and models' processes share."""
