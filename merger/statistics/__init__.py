"""Preview numbers: what a merge will change, exactly, from a sample of the files, or from one in memory."""
