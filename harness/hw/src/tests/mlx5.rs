//! ACS above the NIC, ATS and relaxed ordering.

use super::*;

/// A host whose NIC reads with relaxed ordering, below a port that redirects.
fn redirecting(acs: u16) -> Fixture {
    let fixture = Fixture::whole();
    fixture.write(
        "proc/cpuinfo",
        "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n",
    );
    fixture.config(NIC, DEVICE_CONTROL, 0x2810);
    fixture.config(NIC_PORT, ACS_CONTROL, acs);
    fixture
}

/// The same host with ATS on in the NIC.
fn with_ats(acs: u16) -> Fixture {
    let fixture = redirecting(acs);
    fixture.config(NIC, ATS_CONTROL, 0x8000);
    fixture.set(NIC, "iommu_group/type", "DMA-FQ\n");
    fixture
}

#[test]
fn the_path_tells_what_mlx5_makes_of_it() {
    let path = redirecting(0x0c).found("path");
    assert_eq!(path.state, State::Note);
    assert!(path.found.contains("THRU_HOST_BRIDGE"), "{}", path.found);
    assert!(
        path.found.contains("no page of a peer in memory"),
        "{}",
        path.found
    );
    assert!(
        path.next.contains("IBV_ACCESS_RELAXED_ORDERING"),
        "{}",
        path.next
    );
    assert_eq!(with_ats(0x4c).found("path").state, State::Ok);
    let path = redirecting(0x08).found("path");
    assert_eq!(path.state, State::Note);
    assert!(path.found.contains("ib_write_lat"), "{}", path.found);
    let fixture = redirecting(0x04);
    assert_eq!(fixture.found("path").state, State::Missing);
    assert!(fixture.survey().pair.is_none());
    // There is no path, so mlx5 does not matter.
    fixture.write("proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
    let path = fixture.found("path");
    assert!(!path.found.contains("mlx5"), "{}", path.found);
}

/// A fake perftest that knows --disable_pcie_relaxed. It fails unless the option's
/// presence is as `given`.
fn perftest_that_knows(fixture: &Fixture, given: bool) -> String {
    let (with, without) = if given {
        ("", "exit 1")
    } else {
        ("exit 1", "")
    };
    let check = format!(
        "case \"$*\" in\n*--help*) echo {0};;\n*{0}*) {with};;\n*) {without};;\nesac\n",
        perftest::STRICT
    );
    check + &fixture.perftest()
}

#[test]
fn perftest_does_without_relaxed_ordering_where_that_helps() {
    for (acs, given) in [(0x0c, true), (0x4c, false), (0x08, false), (0, false)] {
        let fixture = with_ats(acs);
        for name in ["ib_write_bw", "ib_read_bw"] {
            fixture.program(name, &perftest_that_knows(&fixture, given));
        }
        let (result, report, _root) = fixture.run();
        assert_eq!(status_of(&result), 0, "{acs:#x}: {report}");
    }
}

/// Like p2p-doctor, mlx5 treats this guest as one whose switches redirect.
#[test]
fn perftest_does_without_relaxed_ordering_in_a_guest_that_shows_no_switch() {
    let fixture = redirecting(0);
    let port = format!("sys/bus/pci/devices/{NIC_PORT}/config");
    let mut config = fs::read(fixture.path(&port)).unwrap();
    config[0x42] = ROOT_PORT << 4 | 2;
    fixture.write(&port, config);
    let cpu = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t: fpu hypervisor\n";
    fixture.write("proc/cpuinfo", cpu);
    let path = fixture.found("path").found;
    assert!(path.contains("shows no switch"), "{path}");
    for name in ["ib_write_bw", "ib_read_bw"] {
        fixture.program(name, &perftest_that_knows(&fixture, true));
    }
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 0, "{report}");
}

#[test]
fn perftest_is_not_given_what_it_does_not_know() {
    let fixture = redirecting(0x0c);
    let picky = format!("case \"$*\" in *{}*) exit 1;; esac\n", perftest::STRICT);
    fixture.program("ib_write_lat", &(picky + &fixture.perftest()));
    let unseen = fixture.perftest().replace("+ 100", "+ 0");
    fixture.program("ib_read_bw", &unseen);
    let (result, report, _root) = fixture.run();
    assert_eq!(status_of(&result), 1, "{report}");
    assert!(
        report.contains("| hw/auto | ib_write_lat | passed |"),
        "{report}"
    );
    let why = format!("mlx5 did not ask for pages of peers because ACS redirects at {NIC_PORT}");
    assert!(report.contains(&why), "{report}");
}
