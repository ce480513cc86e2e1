"""A party's side of federated doubly stochastic kernel learning."""
