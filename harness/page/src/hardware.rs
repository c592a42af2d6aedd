//! Real hardware: the checks of a host, and where its devices are.

use std::path::Path;

use crate::markdown;
use crate::picture::{Kind, Node, Picture, Route, Way};
use crate::report::{Doctor, Finding, Measured, Report};

/// The most ways that the picture shows. A host with eight GPUs and eight NICs has 64.
const DRAWN: usize = 6;

/// What a report contains about a host.
pub struct Hardware<'a> {
    pub findings: &'a [Finding],
    pub doctor: Option<&'a Doctor>,
    pub picture: Option<Picture>,
    pub bars: Vec<Bar<'a>>,
    /// The speed of each way, as HTML.
    pub speed: String,
    pub log: String,
}

/// A figure of perftest, with the length of its bar.
pub struct Bar<'a> {
    pub measured: &'a Measured,
    pub percent: u32,
    pub figure: String,
    pub pages: String,
}

impl<'a> Hardware<'a> {
    /// `None` if the report is about virtual machines. Pictures are in `results`.
    pub fn of(report: &'a Report, results: &Path) -> Option<Self> {
        if report.findings.is_empty() && report.doctor.is_none() {
            return None;
        }
        Some(Self {
            findings: &report.findings,
            doctor: report.doctor.as_ref(),
            picture: report.doctor.as_ref().and_then(picture),
            bars: bars(&report.measured),
            speed: markdown::render(&report.speed, results),
            log: report.log.join("\n"),
        })
    }
}

fn bars(measured: &[Measured]) -> Vec<Bar<'_>> {
    let bar = |m: &'_ Measured| {
        let of_program = measured.iter().filter(|other| other.program == m.program);
        let most = of_program
            .filter_map(|other| other.figure)
            .fold(0.0, f64::max);
        let share = m
            .figure
            .filter(|_| most > 0.0)
            .map_or(0.0, |figure| figure / most);
        (share * 100.0).round() as u32
    };
    let of = |m| Bar {
        percent: bar(m),
        figure: m
            .figure
            .map_or("-".to_owned(), |f| format!("{f} {}", m.unit)),
        pages: Vec::from_iter(
            m.pages
                .iter()
                .map(|(name, count)| format!("{name} {count}")),
        )
        .join(", "),
        measured: m,
    };
    measured.iter().map(of).collect()
}

/// The tree of the host's devices. `None` if there are none.
fn picture(doctor: &Doctor) -> Option<Picture> {
    let mut host = Node::new("host", Kind::Host, &["CPUs, host memory"]);
    for device in &doctor.devices {
        let mut above = &mut host;
        for id in &device.below {
            let place = above.children.iter().position(|child| child.id == *id);
            let place = place.unwrap_or_else(|| {
                above.children.push(Node::new(id, Kind::Bridge, &[id]));
                above.children.len() - 1
            });
            above = &mut above.children[place];
        }
        let kind = match &*device.kind {
            "gpu" => Kind::Gpu,
            _ => Kind::Client,
        };
        let driver = device.driver.as_deref().unwrap_or("no driver");
        let text = [&*device.address, &*format!("{}, {driver}", device.kind)];
        above.children.push(Node::new(&device.address, kind, &text));
    }
    if host.children.is_empty() {
        return None;
    }
    let mut pairs = Vec::from_iter(&doctor.pairs);
    pairs.sort_by_key(|pair| pair.works != "yes");
    let ways = pairs.iter().take(DRAWN).map(|pair| Way {
        gpu: pair.provider.clone(),
        client: pair.client.clone(),
        route: match &*pair.verdict {
            "BUS_ADDR" => Route::Bus,
            "THRU_HOST_BRIDGE" => Route::HostBridge,
            _ => Route::Host,
        },
        is_seen: pair.works == "yes",
        words: format!("{} and {}: {}", pair.provider, pair.client, pair.path),
    });
    let left = doctor.pairs.len().saturating_sub(DRAWN);
    let more = match left {
        0 => String::new(),
        _ => format!(" {left} more pairs are in the table."),
    };
    let summary =
        format!("as p2p-doctor sees it. A dotted line is a way that does not work.{more}");
    Some(Picture::new(
        "This host",
        &summary,
        &host,
        &Vec::from_iter(ways),
    ))
}
