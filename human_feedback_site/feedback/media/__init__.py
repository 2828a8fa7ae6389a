"""Media store: where clips are kept and served from, a local folder or an S3 bucket."""
