"""Where answers come from: a synthetic teacher at once, people through the site later."""
