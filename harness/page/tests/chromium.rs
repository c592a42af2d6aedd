//! Checks the page in Chromium. `make test` installs Chromium, except on Ubuntu. This test
//! runs only if Chromium is installed.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// Sizes of a phone and a desktop screen.
const FRAMES: [(u32, u32); 2] = [(390, 844), (1280, 800)];

/// `preferredColorScheme` of Blink: dark, light.
const SCHEMES: [u8; 2] = [0, 1];

/// What the script in [`OUTSIDE`] reports about a frame.
#[derive(Debug, Deserialize)]
struct Seen {
    title: String,
    /// The background colour.
    ground: String,
    /// How far from the top the verdict and the first failure end.
    verdict: f64,
    first: f64,
    /// The width of the page, with everything folded and unfolded.
    folded: u32,
    unfolded: u32,
    /// Elements that run or load something.
    foreign: Vec<String>,
    /// Failures: heading and log.
    failures: Vec<(String, String)>,
    /// Texts with too little contrast, and their contrast.
    faint: Vec<String>,
    /// Elements that lie outside of their picture.
    cut: Vec<String>,
}

/// A page with a frame for each size, and a script that examines the frames. The pages in
/// the frames must not run scripts.
const OUTSIDE: &str = r#"<!DOCTYPE html><meta charset="utf-8"><body>FRAMES<script>
function luminance(color) {
	const rgb = color.match(/[\d.]+/g).slice(0, 3).map(v => {
		v /= 255;
		return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
	});
	return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
}
function ground(window, element) {
	for (; element; element = element.parentElement) {
		const color = window.getComputedStyle(element).backgroundColor;
		if (!color.endsWith(', 0)')) return color;
	}
	return 'rgb(255, 255, 255)';
}
function contrast(window, element) {
	const style = window.getComputedStyle(element);
	const is_drawn = element.namespaceURI.endsWith('svg');
	const one = luminance(is_drawn ? style.fill : style.color);
	const other = luminance(is_drawn ? style.stroke : ground(window, element));
	return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}
function look(frame) {
	const window = frame.contentWindow, document = frame.contentDocument;
	const all = [...document.querySelectorAll('body *')];
	const bottom = name => document.querySelector(name)?.getBoundingClientRect().bottom ?? 0;
	const seen = {
		title: document.title,
		ground: ground(window, document.body),
		verdict: bottom('#verdict'),
		first: bottom('.failure h3'),
		folded: document.documentElement.scrollWidth,
	};
	document.querySelectorAll('details').forEach(details => details.open = true);
	seen.unfolded = document.documentElement.scrollWidth;
	const foreign = element => ['SCRIPT', 'IFRAME', 'OBJECT', 'EMBED', 'LINK', 'BASE', 'FORM']
		.includes(element.tagName) || [...element.attributes].some(({name, value}) =>
		name.startsWith('on') || name == 'style' || (['src', 'href'].includes(name) &&
		!value.startsWith('#') && !value.startsWith('data:image/svg+xml,')));
	seen.foreign = [...document.querySelectorAll('*')].filter(foreign).map(e => e.outerHTML);
	seen.failures = [...document.querySelectorAll('.failure')].map(failure => [
		failure.querySelector('h3').textContent,
		failure.querySelector('details pre')?.textContent ?? '']);
	const has_text = element => element.tagName != 'TITLE' &&
		[...element.childNodes].some(n => n.nodeType == 3 && n.data.trim());
	seen.faint = all.filter(has_text).map(e => [contrast(window, e), e])
		.filter(([contrast]) => contrast < 4.5)
		.map(([contrast, e]) => contrast.toFixed(1) + ' ' + e.textContent.trim());
	seen.cut = [...document.querySelectorAll('figure svg')].flatMap(svg => {
		const out = svg.getBoundingClientRect();
		return [...svg.children].filter(e => {
			const r = e.getBoundingClientRect();
			return r.left < out.left - 1 || r.right > out.right + 1 ||
				r.top < out.top - 1 || r.bottom > out.bottom + 1;
		}).map(e => e.outerHTML);
	});
	return seen;
}
onload = () => {
	const seen = [...document.querySelectorAll('iframe')].map(look);
	const bytes = new TextEncoder().encode(JSON.stringify(seen));
	document.body.textContent = Array.from(bytes, b => b.toString(16).padStart(2, '0')).join('');
};
</script>"#;

/// Runs Chromium and returns its output.
fn chromium(dir: &Path, arguments: &[&str], page: &Path) -> String {
    let output = Command::new("timeout")
        .args([
            "120",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .env("HOME", dir)
        .env("TMPDIR", dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the script reports about a page in each of [`FRAMES`].
fn look(html: &str, scheme: u8) -> Vec<Seen> {
    let dir = tempfile::tempdir().unwrap();
    let escaped = html.replace('&', "&amp;").replace('"', "&quot;");
    let frames = FRAMES.map(|(width, height)| {
        format!(r#"<iframe width="{width}" height="{height}" frameborder="0" srcdoc="{escaped}"></iframe>"#)
    });
    let outside = dir.path().join("outside.html");
    fs::write(&outside, OUTSIDE.replace("FRAMES", &frames.concat())).unwrap();
    let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
    let printed = chromium(dir.path(), &["--dump-dom", &scheme], &outside);
    let (_, body) = printed.split_once("<body>").unwrap();
    let (hex, _) = body.split_once("</body>").unwrap();
    let bytes = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
    let bytes: Result<Vec<u8>, _> = bytes.collect();
    let bytes = bytes.unwrap_or_else(|error| panic!("{error}: {hex}"));
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
#[ignore = "it needs Chromium"]
fn pages_fit_a_phone_and_a_screen_in_light_and_dark() {
    for name in ["run.json", "hardware.json"] {
        let html = common::render(&common::report(name));
        let mut grounds = Vec::new();
        for scheme in SCHEMES {
            for ((width, height), seen) in FRAMES.iter().zip(look(&html, scheme)) {
                let widths = (seen.folded, seen.unfolded);
                assert!(widths.0 <= *width && widths.1 <= *width, "{widths:?}");
                let first = [seen.verdict, seen.first];
                let is_there = |end: f64| end > 0.0 && end < f64::from(*height);
                assert!(first.into_iter().all(is_there), "{first:?}");
                assert!(seen.faint.is_empty(), "{name}, {scheme}: {:?}", seen.faint);
                assert!(seen.cut.is_empty(), "{:?}", seen.cut);
                grounds.push(seen.ground);
            }
        }
        assert_eq!(grounds[0], grounds[1]);
        assert_ne!(grounds[1], grounds[2]);
    }
}

#[test]
#[ignore = "it needs Chromium"]
fn what_a_test_prints_is_text() {
    let report = common::report("run.json");
    let html = common::render(&report);
    let failed = report
        .outcomes
        .iter()
        .filter(|outcome| outcome.status == ktap::Status::Failed);
    let printed = Vec::from_iter(failed.map(|outcome| {
        let heading = format!("{}: {}", outcome.suite, outcome.name);
        (heading, outcome.log.join("\n"))
    }));
    assert!(
        printed
            .iter()
            .any(|(_, log)| log.contains("</script><img src=x onerror="))
    );
    for seen in look(&html, 1) {
        assert_eq!(seen.title, "make test: 3 failed, 47 passed, 2 skipped");
        assert_eq!(seen.failures, printed);
        assert!(seen.foreign.is_empty(), "{:?}", seen.foreign);
    }
    // A script that got into the page would not run.
    let through = html.replace(
        "<h2>Failures",
        "<script>document.title = 'owned'</script><h2>",
    );
    assert_ne!(html, through);
    for seen in look(&through, 1) {
        assert_eq!(seen.foreign.len(), 1, "{:?}", seen.foreign);
        assert!(!seen.title.contains("owned"), "{}", seen.title);
    }
}

#[test]
#[ignore = "it needs Chromium"]
fn pages_can_be_printed() {
    // The picture of a topology takes up to half a page.
    let topologies = fs::read_dir(common::root().join("qemu/topologies")).unwrap();
    let most = 6 + topologies.count() / 2;
    for name in ["run.json", "hardware.json"] {
        let dir = tempfile::tempdir().unwrap();
        let (page, pdf) = (dir.path().join("page.html"), dir.path().join("page.pdf"));
        fs::write(&page, common::render(&common::report(name))).unwrap();
        let to = format!("--print-to-pdf={}", pdf.display());
        chromium(dir.path(), &["--no-pdf-header-footer", &to], &page);
        let pdf = fs::read(&pdf).unwrap();
        assert!(pdf.starts_with(b"%PDF-"));
        let pages = pdf
            .windows(12)
            .filter(|bytes| bytes == b"/Type /Page\n")
            .count();
        assert!((1..=most).contains(&pages), "{name}: {pages}");
    }
}
