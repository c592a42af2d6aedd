//! A tree of PCI devices as a drawing, with the ways that bytes take in it.
//!
//! A device is a column, and a bridge is a box above all devices below it. So each link is
//! a vertical line, and a way that goes up and down the tree has only right angles.

/// What a box is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CPU and host memory: the root.
    Host,
    /// A host bridge, a port or a switch.
    Bridge,
    /// A GPU.
    Gpu,
    /// A device that reaches it.
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

/// A device with all that is below it.
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

    /// The node of that name in this tree.
    pub fn find(&mut self, id: &str) -> Option<&mut Self> {
        if self.id == id {
            return Some(self);
        }
        self.children.iter_mut().find_map(|child| child.find(id))
    }
}

/// How bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Below a common switch.
    Bus,
    /// Through the host bridge.
    HostBridge,
    /// The same, translated by an IOMMU.
    Translated,
    /// Through host memory: the page migrates first.
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

    /// As the demo's table calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bus => "BUS_ADDR",
            Self::HostBridge => "HOST_BRIDGE",
            Self::Translated => "HOST_BRIDGE (IOVA)",
            Self::Host => "host memory",
        }
    }
}

/// What goes between two devices.
#[derive(Clone, Debug)]
pub struct Way {
    /// The GPU's node.
    pub gpu: String,
    /// The node of what reaches it.
    pub client: String,
    pub route: Route,
    /// Whether it was seen in this run.
    pub is_seen: bool,
    /// What it is, for the legend.
    pub told: String,
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
    pub told: String,
}

const COLUMN: i32 = 136;
const GAP: i32 = 10;
const ROW: i32 = 58;
const BRIDGE: i32 = 34;
const DEVICE: i32 = 44;
/// From one way to the next, where they run side by side.
const APART: i32 = 5;

/// A node that has its place.
struct Placed<'a> {
    node: &'a Node,
    parent: Option<usize>,
    depth: i32,
    /// The columns below it: the first, and how many.
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

    /// Where ways run through it, below its text.
    fn lane(&self) -> i32 {
        self.top() + BRIDGE - 10
    }
}

/// Gives a node and all below it their places; gives the number of columns.
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
    all[own].columns = columns.max(1);
    all[own].columns
}

/// The place of a node with all above it, from itself up to the root.
fn upwards(all: &[Placed<'_>], id: &str) -> Vec<usize> {
    let own = all.iter().position(|placed| placed.node.id == id);
    std::iter::successors(own, |&number| all[number].parent).collect()
}

/// From a device up into the box `end`.
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
        // The ends stay on the edge of their boxes.
        format!("{},{}", x + shift, y + shift.min(6))
    });
    let seen = if way.is_seen { "seen" } else { "expected" };
    Some(Drawn {
        class: format!("{} {seen}", way.route.class()),
        points: Vec::from_iter(points).join(" "),
        name: way.route.name(),
        told: way.told.clone(),
    })
}

impl Picture {
    /// Whether it has a row of the page to itself.
    pub fn is_large(&self) -> bool {
        self.width > 4 * COLUMN
    }

    /// Draws a tree, and these ways in it.
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
                        x: x + 6,
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
