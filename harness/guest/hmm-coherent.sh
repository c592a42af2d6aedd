# Sourced by a job: test_hmm with device coherent memory, too, in memory that `memmap=` on
# the command line of this kernel has kept from it.

load test_hmm spm_addr_dev0=0x50000000 spm_addr_dev1=0x60000000
