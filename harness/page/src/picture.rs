//! A tree of PCI devices as a drawing, with the ways that bytes take in it.
//!
//! Each device has a column. A bridge is a box above all devices below it. So each link is
//! a vertical line, and a way up and down the tree has only right angles.

/// The kind of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CPU and host memory: the root.
    Host,
    /// A host bridge, a port or a switch.
    Bridge,
    /// A GPU.
    Gpu,
    /// A device that reaches the GPU.
    Client,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Bridge => "bridge",
            Self::Gpu => "gpu",
            Self::Client => "client",
        }
    }
}

/// A device with everything below it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Identifies it.
    pub id: String,
    pub kind: Kind,
    /// Lines of text.
    pub text: Vec<String>,
    pub children: Vec<Node>,
}

impl Node {
    pub fn new(id: &str, kind: Kind, text: &[&str]) -> Self {
        Self {
            id: id.to_owned(),
            kind,
            text: text.iter().map(|&line| line.to_owned()).collect(),
            children: Vec::new(),
        }
    }

    /// The node with that name in this tree.
    pub fn find(&mut self, id: &str) -> Option<&mut Self> {
        if self.id == id {
            return Some(self);
        }
        self.children.iter_mut().find_map(|child| child.find(id))
    }
}

/// The route of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Below a common switch.
    Bus,
    /// Through the host bridge.
    HostBridge,
    /// Through the host bridge, translated by an IOMMU.
    Translated,
    /// Through host memory. The page migrates first.
    Host,
}

impl Route {
    fn class(self) -> &'static str {
        match self {
            Self::Bus => "bus",
            Self::HostBridge | Self::Translated => "host-bridge",
            Self::Host => "home",
        }
    }

    /// The name in the demo's table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bus => "BUS_ADDR",
            Self::HostBridge => "HOST_BRIDGE",
            Self::Translated => "HOST_BRIDGE (IOVA)",
            Self::Host => "host memory",
        }
    }
}

/// A way between two devices.
#[derive(Clone, Debug)]
pub struct Way {
    /// The GPU's node.
    pub gpu: String,
    /// The node of the device that reaches it.
    pub client: String,
    pub route: Route,
    /// Whether it was seen in this run.
    pub is_seen: bool,
    /// What it is, for the legend.
    pub words: String,
}

/// A drawing, in pixels.
pub struct Picture {
    /// The heading.
    pub title: String,
    /// What it shows, in a sentence.
    pub summary: String,
    pub width: i32,
    pub height: i32,
    pub boxes: Vec<Box>,
    pub links: Vec<Link>,
    pub ways: Vec<Drawn>,
}

/// A node's rectangle.
pub struct Box {
    pub class: &'static str,
    pub x: i32,
    pub y: i32,
    pub width: i32,
    pub height: i32,
    pub lines: Vec<Line>,
}

/// A line of text.
pub struct Line {
    pub x: i32,
    pub y: i32,
    pub text: String,
}

/// A vertical line between two boxes.
pub struct Link {
    pub x: i32,
    pub from: i32,
    pub to: i32,
}

/// A way as a polyline.
pub struct Drawn {
    pub class: String,
    pub points: String,
    pub name: &'static str,
    pub words: String,
}

const COLUMN: i32 = 136;
/// The width of a letter, on average.
const LETTER: i32 = 6;
/// The distance between a box's left edge and its text.
const MARGIN: i32 = 6;
const GAP: i32 = 10;
const ROW: i32 = 58;
const BRIDGE: i32 = 34;
const DEVICE: i32 = 44;
/// The distance between ways that run side by side.
const APART: i32 = 5;

/// A node with its place.
struct Placed<'a> {
    node: &'a Node,
    parent: Option<usize>,
    depth: i32,
    /// The columns that it spans: the first one, and how many.
    first: i32,
    columns: i32,
}

impl Placed<'_> {
    fn is_device(&self) -> bool {
        matches!(self.node.kind, Kind::Gpu | Kind::Client)
    }

    fn center(&self) -> i32 {
        self.first * COLUMN + self.columns * COLUMN / 2
    }

    fn top(&self) -> i32 {
        self.depth * ROW + GAP / 2
    }

    fn height(&self) -> i32 {
        if self.is_device() { DEVICE } else { BRIDGE }
    }

    /// The height at which ways run through it, below its text.
    fn lane(&self) -> i32 {
        self.top() + BRIDGE - 10
    }
}

/// The number of columns that a node's text needs.
fn columns_of_text(node: &Node) -> i32 {
    let letters = node.text.iter().map(|line| line.chars().count()).max();
    let width = letters.unwrap_or(0) as i32 * LETTER + 2 * MARGIN + GAP;
    1 + width / COLUMN
}

/// Places a node and everything below it. Returns the number of columns.
fn place<'a>(
    node: &'a Node,
    parent: Option<usize>,
    depth: i32,
    first: i32,
    all: &mut Vec<Placed<'a>>,
) -> i32 {
    let own = all.len();
    all.push(Placed {
        node,
        parent,
        depth,
        first,
        columns: 1,
    });
    let mut columns = 0;
    for child in &node.children {
        columns += place(child, Some(own), depth + 1, first + columns, all);
    }
    all[own].columns = columns.max(columns_of_text(node));
    all[own].columns
}

/// A node and everything above it, from the node to the root.
fn upwards(all: &[Placed<'_>], id: &str) -> Vec<usize> {
    let own = all.iter().position(|placed| placed.node.id == id);
    std::iter::successors(own, |&number| all[number].parent).collect()
}

/// The points from a device up to the box `end`.
fn climb(all: &[Placed<'_>], chain: &[usize], end: usize) -> Vec<(i32, i32)> {
    let mut x = all[chain[0]].center();
    let mut points = vec![(x, all[chain[0]].top())];
    for &above in &chain[1..] {
        points.push((x, all[above].lane()));
        if above == end {
            break;
        }
        x = all[above].center();
        points.push((x, all[above].lane()));
    }
    points
}

fn draw(all: &[Placed<'_>], way: &Way, number: i32) -> Option<Drawn> {
    let (gpu, client) = (upwards(all, &way.gpu), upwards(all, &way.client));
    let end = match way.route {
        Route::Host => 0,
        _ => *gpu.iter().find(|place| client.contains(place))?,
    };
    if gpu.is_empty() || client.is_empty() {
        return None;
    }
    let mut points = climb(all, &client, end);
    points.extend(climb(all, &gpu, end).into_iter().rev());
    let shift = number * APART;
    let points = points.iter().map(|(x, y)| {
        // The ends stay at the edges of their boxes.
        format!("{},{}", x + shift, y + shift.min(6))
    });
    let seen = if way.is_seen { "seen" } else { "expected" };
    Some(Drawn {
        class: format!("{} {seen}", way.route.class()),
        points: Vec::from_iter(points).join(" "),
        name: way.route.name(),
        words: way.words.clone(),
    })
}

impl Picture {
    /// Whether it needs a whole row of the page.
    pub fn is_large(&self) -> bool {
        self.width > 4 * COLUMN
    }

    /// Draws a tree and these ways.
    pub fn new(title: &str, summary: &str, root: &Node, ways: &[Way]) -> Self {
        let mut all = Vec::new();
        let columns = place(root, None, 0, 0, &mut all);
        let rows = all.iter().map(|placed| placed.depth).max().unwrap_or(0);
        let boxes = all.iter().map(|placed| {
            let inset = GAP / 2;
            let (x, y) = (placed.first * COLUMN + inset, placed.top());
            let text = placed.node.text.iter().zip(0..);
            Box {
                class: placed.node.kind.class(),
                x,
                y,
                width: placed.columns * COLUMN - GAP,
                height: placed.height(),
                lines: text
                    .map(|(text, number)| Line {
                        x: x + MARGIN,
                        y: y + 15 + number * 16,
                        text: text.clone(),
                    })
                    .collect(),
            }
        });
        let links = all.iter().filter_map(|placed| {
            let above = &all[placed.parent?];
            Some(Link {
                x: placed.center(),
                from: above.top() + above.height(),
                to: placed.top(),
            })
        });
        let ways = ways.iter().zip(0..);
        Self {
            title: title.to_owned(),
            summary: summary.to_owned(),
            width: columns * COLUMN,
            height: rows * ROW + DEVICE + GAP,
            boxes: boxes.collect(),
            links: links.collect(),
            ways: ways.filter_map(|(way, n)| draw(&all, way, n)).collect(),
        }
    }
}
