"""Services: functions that write to the database, one module per subject."""
