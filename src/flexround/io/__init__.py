"""Files: atomic writes and manifests, downloads, the unfinished work of killed jobs."""
