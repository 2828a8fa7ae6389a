"""The commands of ``teach``, one module each; heavy libraries load when a command starts work."""
