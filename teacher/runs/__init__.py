"""What is done with saved runs: play, export, extend, plot."""
