"""What both frameworks share: the spec, the data, the order, the initial weights, the clock. No framework in here."""
