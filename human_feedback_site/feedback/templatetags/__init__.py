"""What templates of the site use beside Django's tags."""
