"""Merge methods, one file each; a file that is put here is found by itself."""
