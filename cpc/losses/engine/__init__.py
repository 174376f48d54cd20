"""The fast computation of the losses: tiles of scores, their gradients, the ring exchange and the compiled operators.

`tiled_loss` computes the weighted mean of row losses with its gradients, in tiles. `ring_loss` computes InfoNCE while
the latents go round the ranks. `partition` sums over a bank. Only `cpc.losses` imports from here.
"""
