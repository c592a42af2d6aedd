# Sourced by a job whose GPU fails after some transfers (`pascal --transfers=N`): this tells
# the test that it has to.

export P2PTEST_GPU_DIES=1
