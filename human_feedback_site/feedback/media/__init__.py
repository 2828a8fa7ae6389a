"""Media store, which keeps and serves clips: a local folder or an S3 bucket."""
