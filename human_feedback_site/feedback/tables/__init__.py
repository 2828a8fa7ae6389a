"""Tables of comparisons and labels, exported to and imported from CSV and Parquet files."""
