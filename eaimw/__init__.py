"""eaimw: an integration hub in which no back-end drags another."""
