"""The `slipway` command, which gathers the commands of all packages."""
