"""Single sign-on with OpenID Connect, in the site only if it is configured."""
