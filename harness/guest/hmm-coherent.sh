# Sourced by a job: test_hmm with device coherent memory, which `memmap=` of the job keeps free.

load test_hmm spm_addr_dev0=0x50000000 spm_addr_dev1=0x60000000
