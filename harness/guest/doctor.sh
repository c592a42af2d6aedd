# Whether p2p-doctor and the kernel say the same of each test GPU and test NIC. Sourced by
# jobs that ask for it, after the test devices' modules were loaded; defines the command
# `doctor`, which prints KTAP.

_root=$guest/../..

doctor() {
	"$P2PTEST_MODDIR/../guest/verdict" >"$out/kernel.txt" || return
	"$_root/build/p2p" doctor --json --dump "$out/host.toml" >"$out/doctor.json"
	# 0 to 4 are its findings.
	[ $? -le 4 ] || return 1
	python3 - "$out/doctor.json" "$out/kernel.txt" <<-'EOF'
		import json, sys
		report = json.load(open(sys.argv[1]))
		ours = {(p["provider"], p["client"]): p for p in report["pairs"]
		        if p["kind"] == "gpu-nic"}
		kernel = [line.split() for line in open(sys.argv[2])]
		print("KTAP version 1")
		print(f"1..{len(kernel) + 1}")
		bad = 0
		for n, (gpu, nic, verdict) in enumerate(kernel, 1):
		    pair = ours.pop((gpu, nic), None)
		    said = pair and pair["verdict"]
		    if said != verdict:
		        print(f"# the kernel says {verdict}, p2p-doctor {said}: {pair}")
		        bad += 1
		    print(f"{'ok' if said == verdict else 'not ok'} {n} {gpu} {nic} {verdict}")
		same = bool(kernel) and not ours
		if not same:
		    print(f"# pairs that only p2p-doctor has: {list(ours)}")
		print(f"{'ok' if same else 'not ok'} {len(kernel) + 1} the same pairs")
		sys.exit(bad or not same)
	EOF
}
