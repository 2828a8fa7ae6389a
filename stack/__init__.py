"""The full stack as processes of one machine: ``python -m stack``, for developers and for the tests."""
