"""The page: one file per panel, each with build(), wire() and plain handlers."""
