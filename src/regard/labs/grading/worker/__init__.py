"""The process that runs answers. It is started as a script, outside the package `regard`."""
