"""What goes through the gateway beside what is sent direct, byte for byte."""
