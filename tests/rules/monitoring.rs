//! Prometheus can parse our alerts, and Grafana our dashboard. The end-to-end tests show that their
//! metrics exist.

use promql_parser::parser::parse;
use yaml_rust2::{Yaml, YamlLoader};

use crate::workspace::read;

fn load(name: &str) -> Vec<Yaml> {
    // JSON is YAML.
    YamlLoader::load_from_str(&read(&format!("deploy/prometheus/{name}"))).unwrap()
}

fn check(expression: &str) {
    // Grafana replaces this variable by a duration.
    let expression = expression.replace("$__rate_interval", "1m");
    parse(&expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
}

#[test]
fn every_alert_has_a_query_and_an_explanation() {
    let document = &load("cool-alerts.yaml")[0];
    let groups = document["groups"].as_vec().unwrap();
    let rules: Vec<&Yaml> = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap()).collect();
    assert!(!rules.is_empty());
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        check(rule["expr"].as_str().unwrap());
        assert!(["page", "ticket"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap();
            assert!(text.ends_with('.'), "{name}: {annotation}");
        }
    }
}

#[test]
fn every_panel_has_a_place_of_its_own_and_queries() {
    let document = &load("grafana.json")[0];
    let panels = document["panels"].as_vec().unwrap();
    let mut places = Vec::new();
    for panel in panels {
        let place = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_i64().unwrap());
        let [x, y, w, h] = place;
        assert!(x + w <= 24, "{place:?}");
        let apart = |[a, b, c, d]: &[i64; 4]| x + w <= *a || a + c <= x || y + h <= *b || b + d <= y;
        assert!(places.iter().all(apart), "{place:?} among {places:?}");
        places.push(place);
        for target in panel["targets"].as_vec().unwrap() {
            check(target["expr"].as_str().unwrap());
        }
    }
    assert!(!places.is_empty());
}
