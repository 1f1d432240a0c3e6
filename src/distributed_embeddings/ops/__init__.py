"""How numbers are computed: bags, ids, rows, initial values, in plain TensorFlow ops."""
