// Evaluates queries of dashboards with Prometheus's own engine.
//
// Standard input is a JSON object: `scrapes` is a list of pages with the time at which Prometheus
// would have fetched each and the labels that it would add; `queries` maps names to PromQL; `at` is
// the time of the evaluation. Times are in milliseconds. Standard output maps each name to the
// values of the series that the query finds, or to an error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

type scrape struct {
	Time   int64             `json:"time"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
}

type request struct {
	Scrapes []scrape          `json:"scrapes"`
	Queries map[string]string `json:"queries"`
	At      int64             `json:"at"`
}

type answer struct {
	Values []string `json:"values"`
	Error  string   `json:"error"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var input request
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "dashboards")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	db, err := tsdb.Open(directory, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, page := range input.Scrapes {
		if err := store(db, page); err != nil {
			return err
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:    10_000_000,
		Timeout:       time.Minute,
		LookbackDelta: 5 * time.Minute,
	})
	answers := map[string]answer{}
	for name, query := range input.Queries {
		values, err := evaluate(engine, db, query, time.UnixMilli(input.At))
		if err != nil {
			answers[name] = answer{Values: []string{}, Error: err.Error()}
		} else {
			answers[name] = answer{Values: values}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// store appends the samples of a page. A sample that the page has twice is an error.
func store(db *tsdb.DB, page scrape) error {
	appender := db.Appender(context.Background())
	parser := textparse.NewPromParser([]byte(page.Text), labels.NewSymbolTable(), false)
	seen := map[string]bool{}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var own labels.Labels
		_, _, value := parser.Series()
		parser.Labels(&own)
		builder := labels.NewBuilder(own)
		for name, text := range page.Labels {
			builder.Set(name, text)
		}
		series := builder.Labels()
		if seen[series.String()] {
			return fmt.Errorf("the page has %s twice", series)
		}
		seen[series.String()] = true
		if _, err := appender.Append(storage.SeriesRef(0), series, page.Time, value); err != nil {
			return fmt.Errorf("%s: %w", series, err)
		}
	}
	return appender.Commit()
}

// evaluate returns the values of the series that a query finds, without those that are not numbers.
func evaluate(engine *promql.Engine, db *tsdb.DB, query string, at time.Time) ([]string, error) {
	prepared, err := engine.NewInstantQuery(context.Background(), db, nil, query, at)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	result := prepared.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	vector, ok := result.Value.(promql.Vector)
	if !ok {
		return nil, fmt.Errorf("the result is a %s", parser.DocumentedType(result.Value.Type()))
	}
	values := []string{}
	for _, sample := range vector {
		if !math.IsNaN(sample.F) {
			values = append(values, fmt.Sprint(sample.F))
		}
	}
	return values, nil
}
