//! Prints a report for people: the devices as a tree, a table of pairs, and the obstacles
//! with what to do.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use console::Style;

use crate::host::Host;
use crate::report::{Effect, Obstacle, PairKind, PairReport, Report, Works};
use crate::rules::Verdict;

mod tree;

/// The output's width and colours.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Its width in columns.
    pub width: usize,
    /// Whether there are colours.
    pub colour: bool,
}

impl Paper {
    fn style(self, style: Style, text: &str) -> String {
        style.force_styling(self.colour).apply_to(text).to_string()
    }

    fn bold(self, text: &str) -> String {
        self.style(Style::new().bold(), text)
    }

    fn dim(self, text: &str) -> String {
        self.style(Style::new().dim(), text)
    }
}

/// Writes a report about a host.
pub fn render(host: &Host, report: &Report, paper: Paper) -> String {
    let mut text = String::new();
    head(report, paper, &mut text);
    if !report.devices.is_empty() {
        let _ = write!(text, "\n{}\n", paper.bold("Devices"));
        tree::draw(host, report, paper, &mut text);
    }
    if !report.pairs.is_empty() {
        let _ = write!(text, "\n{}\n", paper.bold("Pairs"));
        table(report, paper, &mut text);
        if report.pairs.iter().any(|p| p.kind == PairKind::GpuGpu) {
            let line = "GPUs among themselves: by PCI Express; NVLink and XGMI are not looked at.";
            let _ = writeln!(text, "{}", paper.dim(line));
        }
    }
    if !report.obstacles.is_empty() {
        let title = "What stands in the way, first what helps most";
        let _ = write!(text, "\n{}\n", paper.bold(title));
        for obstacle in &report.obstacles {
            write_obstacle(obstacle, report.pairs.len(), paper, &mut text);
        }
    }
    counters(report, paper, &mut text);
    let _ = write!(text, "\n{}\n", paper.bold(&closing_line(report)));
    text
}

fn head(report: &Report, paper: Paper, text: &mut String) {
    let host = &report.host;
    let iommu = if host.iommus.is_empty() {
        "no IOMMU".to_owned()
    } else {
        format!("IOMMU {}", host.iommus.join(", "))
    };
    let mut line = format!("Linux {}, {iommu}", host.kernel);
    if !host.cpu.is_empty() {
        let _ = write!(line, ", CPU {}", host.cpu);
    }
    if host.is_guest {
        line.push_str(", a virtual machine");
    }
    line.push_str(match &host.series {
        Some(_) => ", with the series",
        None => ", without the series",
    });
    text.push_str(&wrapped(&line, "", paper.width));
    if version(&host.kernel).is_none_or(|own| Some(own) != version(&host.bridges_of_kernel)) {
        let line = format!(
            "The list of host bridges is that of Linux {}; this kernel's may be another.",
            host.bridges_of_kernel
        );
        text.push_str(&paper.dim(wrapped(&line, "", paper.width).trim_end()));
        text.push('\n');
    }
    for line in &host.unreadable {
        text.push_str(&wrapped(&format!("not read: {line}"), "  ", paper.width));
    }
}

/// Major and minor version of a kernel.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn table(report: &Report, paper: Paper, text: &mut String) {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(paper.width).unwrap_or(u16::MAX))
        .set_header([
            "memory of",
            "reached by",
            "path",
            "p2pdma's verdict",
            "result",
            "see",
        ]);
    let mut rows: Vec<(&PairReport, Vec<String>)> = Vec::new();
    for pair in &report.pairs {
        let is_same = |other: &PairReport| {
            (&other.provider, other.kind, other.verdict, &other.path)
                == (&pair.provider, pair.kind, pair.verdict, &pair.path)
                && (other.works, other.in_place, &other.obstacles)
                    == (pair.works, pair.in_place, &pair.obstacles)
        };
        let client = name(report, &pair.client);
        match rows.iter_mut().find(|(other, _)| is_same(other)) {
            Some((_, clients)) => clients.push(client),
            None => rows.push((pair, vec![client])),
        }
    }
    for (pair, clients) in rows {
        let see: Vec<_> = pair.obstacles.iter().map(ToString::to_string).collect();
        table.add_row([
            name(report, &pair.provider),
            few(&clients, 8, "\n"),
            pair.path.clone(),
            verdict(pair),
            result(pair).to_owned(),
            see.join(","),
        ]);
    }
    let mut drawn = table.to_string();
    for (word, style) in [
        (Verdict::BusAddr, Style::new().green()),
        (Verdict::ThruHostBridge, Style::new().yellow()),
        (Verdict::NotSupported, Style::new().red()),
    ] {
        drawn = drawn.replace(word.name(), &paper.style(style, word.name()));
    }
    text.push_str(&drawn);
    text.push('\n');
}

fn verdict(pair: &PairReport) -> String {
    if pair.possible.is_empty() {
        return pair.verdict.name().to_owned();
    }
    let possible: Vec<_> = pair.possible.iter().map(|v| v.name()).collect();
    possible.join(" or ")
}

fn result(pair: &PairReport) -> &'static str {
    match (pair.works, pair.in_place) {
        (Works::No, _) => "no path",
        (Works::Unknown, _) => "not known",
        (Works::Yes, None) => "path",
        (Works::Yes, Some(Works::Yes)) => "path; in place",
        (Works::Yes, Some(Works::No)) => "path; not in place",
        (Works::Yes, Some(Works::Unknown)) => "path; in place not known",
    }
}

/// The usual name of a device.
fn name(report: &Report, address: &str) -> String {
    let device = report.devices.iter().find(|d| d.address == address);
    match device {
        Some(device) if !device.verbs.is_empty() => {
            format!("{} {address}", device.verbs.join(" "))
        }
        _ => address.to_owned(),
    }
}

fn few(names: &[String], most: usize, between: &str) -> String {
    if names.len() <= most {
        return names.join(between);
    }
    let shown = names[..most - 1].join(between);
    format!("{shown}{between}and {} more", names.len() - most + 1)
}

fn write_obstacle(obstacle: &Obstacle, pairs: usize, paper: Paper, text: &mut String) {
    let (word, style) = match obstacle.effect {
        Effect::Blocks => ("blocks", Style::new().red().bold()),
        Effect::Unknown => ("not known", Style::new().magenta().bold()),
        Effect::BlocksInPlace => ("not in place", Style::new().yellow().bold()),
        Effect::UnknownInPlace => ("in place not known", Style::new().magenta()),
        Effect::Limits => ("limits", Style::new().yellow()),
        Effect::Note => ("note", Style::new().cyan()),
    };
    let which = match obstacle.pairs.len() {
        0 => "a NIC for the GPU".to_owned(),
        n if n == pairs && n > 1 => format!("all {n} pairs"),
        n if n == pairs => "the pair".to_owned(),
        n => format!("{n} of {pairs} pairs"),
    };
    let title = format!("{}, {which}: ", paper.style(style, word));
    let number = format!("{:>3}. ", obstacle.id);
    let first = wrapped(&format!("{title}{}", obstacle.what), "     ", paper.width);
    text.push_str(&number);
    text.push_str(first.trim_start());
    if !obstacle.at.is_empty() {
        let at = few(&obstacle.at, 8, "; ");
        text.push_str(&wrapped(&format!("at: {at}"), "     ", paper.width));
    }
    if obstacle.effect != Effect::Note && (1..pairs).contains(&obstacle.pairs.len()) {
        let pairs = few(&obstacle.pairs, 4, "; ");
        let line = wrapped(&format!("pairs: {pairs}"), "     ", paper.width);
        text.push_str(&line);
    }
    text.push_str(&wrapped(
        &format!("next: {}", obstacle.next),
        "     ",
        paper.width,
    ));
    if let Some(parameter) = &obstacle.parameter {
        // On one line, so that users can copy it.
        let _ = writeln!(text, "     {}", paper.bold(parameter));
    }
    if let Some(parameter) = &obstacle.config_acs {
        let _ = writeln!(
            text,
            "     or, from Linux 6.15 on, to keep other ACS controls:"
        );
        let _ = writeln!(text, "     {}", paper.bold(parameter));
    }
}

fn counters(report: &Report, paper: Paper, text: &mut String) {
    let Some(series) = &report.host.series else {
        return;
    };
    let title = format!("The series since boot (policy {})", series.policy);
    let _ = write!(text, "\n{}\n", paper.bold(&title));
    let mut counts: Vec<_> = series.pages.iter().filter(|c| c.pages > 0).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.pages));
    if counts.is_empty() {
        let line = "no page was asked for in place: none was in a GPU, or the memory region has \
                    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND or IBV_ACCESS_HUGETLB, or mlx5 \
                    did not ask because of ACS. Pages that are not asked for are not counted";
        text.push_str(&wrapped(line, "  ", paper.width));
    }
    for count in counts {
        let line = format!("{:>12} {}: {}", count.pages, count.result, count.meaning);
        text.push_str(&wrapped(&line, "  ", paper.width));
    }
}

/// The summary line.
pub fn closing_line(report: &Report) -> String {
    let of = |kind| report.devices.iter().filter(|d| d.kind == kind).count();
    if report.pairs.is_empty() {
        use crate::report::DeviceKind::{Gpu, Nic, Nvme};
        let counted = |kind, one: &str| match of(kind) {
            0 => format!("no {one}"),
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        return format!(
            "There is no pair to look at: {}, {}, {}",
            counted(Gpu, "GPU"),
            counted(Nic, "RDMA device"),
            counted(Nvme, "disk")
        );
    }
    let count = |works| report.pairs.iter().filter(|p| p.works == works).count();
    let mut line = format!(
        "Pairs: {}, of which {} with a path, {} without, {} not known",
        report.pairs.len(),
        count(Works::Yes),
        count(Works::No),
        count(Works::Unknown)
    );
    let nics = report.pairs.iter().filter(|p| p.kind == PairKind::GpuNic);
    let in_place = nics
        .clone()
        .filter(|p| p.in_place == Some(Works::Yes))
        .count();
    let _ = write!(line, ". GPU and NIC: {}, in place {in_place}", nics.count());
    line
}

/// Wraps text to the width if possible, and adds `indent` to each line.
fn wrapped(text: &str, indent: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut line = String::from(indent);
    let mut used = indent.len();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let long = console::measure_text_width(word);
        if !is_empty && used + 1 + long > width {
            lines.push_str(&line);
            lines.push('\n');
            // Continuation lines have more indentation.
            line = format!("{indent}  ");
            used = line.len();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += long;
        is_empty = false;
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}
